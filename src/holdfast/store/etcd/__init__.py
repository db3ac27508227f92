"""A cell on an etcd cluster: the store contract on etcd's own transactions, watches and linearizable reads.

`store` is the store, `tail` follows the cluster, `calls` reaches its members, `wire` speaks its protocol.
"""
