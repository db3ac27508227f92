"""Credentials: the CA, certificates, tokens, node join, and authentication."""
