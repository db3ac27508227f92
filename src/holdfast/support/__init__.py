"""The support bundle: facts of a platform in one file, without secrets."""
