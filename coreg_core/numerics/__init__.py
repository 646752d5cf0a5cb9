"""Array types and numerical building blocks."""
