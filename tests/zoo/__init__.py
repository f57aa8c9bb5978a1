"""Models that nobody here wrote, trained as their users train them: ``python -m tests.zoo``.

They are models of transformers, timm and diffusers, made from their own configurations with random weights; nothing is
downloaded. Importing this package needs none of these libraries.
"""
