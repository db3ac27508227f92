"""Container registries: which ones are allowed, and reading images from them."""
