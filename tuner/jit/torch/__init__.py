"""Backend of ``torch.compile``, and jitted functions of torch."""
