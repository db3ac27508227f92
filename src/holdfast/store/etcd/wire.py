"""The part of etcd's v3 protocol that the store uses: messages and methods, built when the module is loaded.

The descriptors are in a pool of their own: no generated code must match the installed protobuf, and no other user of
etcd's messages in the process can clash. Field numbers are etcd's; enumerations are plain numbers.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "etcdserverpb"
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bytes": _FIELD.TYPE_BYTES,
    "string": _FIELD.TYPE_STRING,
    "int64": _FIELD.TYPE_INT64,
    "uint64": _FIELD.TYPE_UINT64,
    "int32": _FIELD.TYPE_INT32,
    "bool": _FIELD.TYPE_BOOL,
}

# message → its fields: number, type, name; `*` is repeated, `|` is part of a oneof.
_MESSAGES = {
    "KeyValue": "1 bytes key; 2 int64 create_revision; 3 int64 mod_revision; 4 int64 version; 5 bytes value",
    "Event": "1 int32 type; 2 KeyValue kv; 3 KeyValue prev_kv",
    "ResponseHeader": "1 uint64 cluster_id; 2 uint64 member_id; 3 int64 revision; 4 uint64 raft_term",
    "RangeRequest": (
        "1 bytes key; 2 bytes range_end; 3 int64 limit; 4 int64 revision; 5 int32 sort_order; 6 int32 sort_target; "
        "7 bool serializable; 8 bool keys_only; 9 bool count_only"
    ),
    "RangeResponse": "1 ResponseHeader header; 2 KeyValue* kvs; 3 bool more; 4 int64 count",
    "PutRequest": "1 bytes key; 2 bytes value",
    "PutResponse": "1 ResponseHeader header",
    "DeleteRangeRequest": "1 bytes key; 2 bytes range_end",
    "DeleteRangeResponse": "1 ResponseHeader header; 2 int64 deleted",
    "RequestOp": (
        "1 RangeRequest| request_range; 2 PutRequest| request_put; 3 DeleteRangeRequest| request_delete_range"
    ),
    "ResponseOp": (
        "1 RangeResponse| response_range; 2 PutResponse| response_put; 3 DeleteRangeResponse| response_delete_range"
    ),
    "Compare": "1 int32 result; 2 int32 target; 3 bytes key; 6 int64| mod_revision; 7 bytes| value",
    "TxnRequest": "1 Compare* compare; 2 RequestOp* success; 3 RequestOp* failure",
    "TxnResponse": "1 ResponseHeader header; 2 bool succeeded; 3 ResponseOp* responses",
    "CompactionRequest": "1 int64 revision; 2 bool physical",
    "CompactionResponse": "1 ResponseHeader header",
    "WatchCreateRequest": (
        "1 bytes key; 2 bytes range_end; 3 int64 start_revision; 4 bool progress_notify; 6 bool prev_kv"
    ),
    "WatchProgressRequest": "",
    "WatchRequest": "1 WatchCreateRequest| create_request; 3 WatchProgressRequest| progress_request",
    "WatchResponse": (
        "1 ResponseHeader header; 2 int64 watch_id; 3 bool created; 4 bool canceled; 5 int64 compact_revision; "
        "6 string cancel_reason; 11 Event* events"
    ),
    "StatusRequest": "",
    "StatusResponse": "1 ResponseHeader header; 2 string version; 3 int64 dbSize; 4 uint64 leader; 8 string* errors",
    "AlarmRequest": "1 int32 action; 2 uint64 memberID; 3 int32 alarm",
    "AlarmMember": "1 uint64 memberID; 2 int32 alarm",
    "AlarmResponse": "1 ResponseHeader header; 2 AlarmMember* alarms",
    "AuthenticateRequest": "1 string name; 2 string password",
    "AuthenticateResponse": "1 ResponseHeader header; 2 string token",
    "Member": "1 uint64 ID; 2 string name; 3 string* peerURLs; 4 string* clientURLs; 5 bool isLearner",
    "MemberListRequest": "",
    "MemberListResponse": "1 ResponseHeader header; 2 Member* members",
    "MemberAddRequest": "1 string* peerURLs; 2 bool isLearner",
    "MemberAddResponse": "1 ResponseHeader header; 2 Member member; 3 Member* members",
    "MemberIdRequest": "1 uint64 ID",
}

# method → path, request, response
METHODS = {
    "Range": ("KV/Range", "RangeRequest", "RangeResponse"),
    "DeleteRange": ("KV/DeleteRange", "DeleteRangeRequest", "DeleteRangeResponse"),
    "Txn": ("KV/Txn", "TxnRequest", "TxnResponse"),
    "Compact": ("KV/Compact", "CompactionRequest", "CompactionResponse"),
    "Watch": ("Watch/Watch", "WatchRequest", "WatchResponse"),
    "Status": ("Maintenance/Status", "StatusRequest", "StatusResponse"),
    "Alarm": ("Maintenance/Alarm", "AlarmRequest", "AlarmResponse"),
    "MemberList": ("Cluster/MemberList", "MemberListRequest", "MemberListResponse"),
    "MemberAdd": ("Cluster/MemberAdd", "MemberAddRequest", "MemberAddResponse"),
    "MemberPromote": ("Cluster/MemberPromote", "MemberIdRequest", "MemberListResponse"),
    "MemberRemove": ("Cluster/MemberRemove", "MemberIdRequest", "MemberListResponse"),
    "Authenticate": ("Auth/Authenticate", "AuthenticateRequest", "AuthenticateResponse"),
}

EQUAL, MOD, DELETED = 0, 2, 1
DESCEND, BY_KEY = 2, 0
ALARM_DEACTIVATE, ALARM_NOSPACE = 2, 1


def _file() -> descriptor_pb2.FileDescriptorProto:
    made = descriptor_pb2.FileDescriptorProto(name="holdfast/etcd.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = made.message_type.add(name=name)
        for line in filter(None, (part.strip() for part in fields.split(";"))):
            number, kind, field = line.split()
            _add_field(message, int(number), kind, field)
    return made


def _add_field(message: descriptor_pb2.DescriptorProto, number: int, kind: str, name: str) -> None:
    bare = kind.rstrip("*|")
    repeated = kind.endswith("*")
    field = message.field.add(
        name=name, number=number, label=_FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    )
    if bare in _SCALARS:
        field.type = _SCALARS[bare]
    else:
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{bare}"
    if kind.endswith("|"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="choice")
        field.oneof_index = 0


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    found = {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


_CLASS = _classes()

Compare: Any = _CLASS["Compare"]
RangeRequest: Any = _CLASS["RangeRequest"]
PutRequest: Any = _CLASS["PutRequest"]
DeleteRangeRequest: Any = _CLASS["DeleteRangeRequest"]
RequestOp: Any = _CLASS["RequestOp"]
TxnRequest: Any = _CLASS["TxnRequest"]
CompactionRequest: Any = _CLASS["CompactionRequest"]
WatchRequest: Any = _CLASS["WatchRequest"]
WatchCreateRequest: Any = _CLASS["WatchCreateRequest"]
WatchProgressRequest: Any = _CLASS["WatchProgressRequest"]
StatusRequest: Any = _CLASS["StatusRequest"]
AlarmRequest: Any = _CLASS["AlarmRequest"]
AuthenticateRequest: Any = _CLASS["AuthenticateRequest"]
MemberListRequest: Any = _CLASS["MemberListRequest"]
MemberAddRequest: Any = _CLASS["MemberAddRequest"]
MemberIdRequest: Any = _CLASS["MemberIdRequest"]


def path_of(method: str) -> str:
    return f"/{_PACKAGE}.{METHODS[method][0]}"


def response_class(method: str) -> Any:
    return _CLASS[METHODS[method][2]]


def read(key: bytes, end: bytes = b"", *, limit: int = 0, revision: int = 0, keys_only: bool = False) -> Any:
    return RangeRequest(key=key, range_end=end, limit=limit, revision=revision, keys_only=keys_only)


def read_op(key: bytes, end: bytes = b"", *, limit: int = 0, keys_only: bool = False) -> Any:
    return RequestOp(request_range=read(key, end, limit=limit, keys_only=keys_only))


def put_op(key: bytes, value: bytes) -> Any:
    return RequestOp(request_put=PutRequest(key=key, value=value))


def delete_op(key: bytes, end: bytes = b"") -> Any:
    return RequestOp(request_delete_range=DeleteRangeRequest(key=key, range_end=end))


def at_revision(key: bytes, revision: int) -> Any:
    """A compare: the key was last modified at this revision; 0 means that it does not exist."""
    return Compare(result=EQUAL, target=MOD, key=key, mod_revision=revision)
