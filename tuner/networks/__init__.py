"""Loading of model files and named networks, with fixed input shapes; independent of TVM."""
