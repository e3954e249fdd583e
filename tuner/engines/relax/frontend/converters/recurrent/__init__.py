"""Converters of recurrent layers: RNN, GRU and LSTM."""
