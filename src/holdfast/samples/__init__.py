"""Sample programs for a platform: small processes that use only the standard library and start fast."""
