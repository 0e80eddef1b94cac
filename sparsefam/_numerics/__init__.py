"""Numerical routines: tensors in, tensors out."""
