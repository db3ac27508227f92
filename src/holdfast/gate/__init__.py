"""The write path of a cell: authorization, admission, ownership, audit and commit."""
