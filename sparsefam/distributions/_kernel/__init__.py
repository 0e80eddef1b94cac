"""Densities on meshes: scores linear in functions, solved at quadrature nodes."""
