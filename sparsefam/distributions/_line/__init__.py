"""Densities of numbers: the rule that integrates them, laws with closed forms, and their sets."""
