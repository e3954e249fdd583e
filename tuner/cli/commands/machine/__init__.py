"""Commands about this machine: its devices, engines, settings and shortcomings."""
