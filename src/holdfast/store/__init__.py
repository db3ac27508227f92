"""The transactional store of a cell: one contract, with implementations in memory, on SQLite and on etcd."""
