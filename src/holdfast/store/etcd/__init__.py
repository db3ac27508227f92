"""A cell's store on an etcd cluster: the store contract on etcd's transactions, watches and linearizable reads.

`store` is the store, `tail` follows the cluster, `calls` connects to its members, `wire` encodes the protocol.
"""
