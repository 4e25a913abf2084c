"""A reader and writer of vimeo's RaceEntry that shares no code with Tenure.

The message is declared to Python's protobuf as entry.proto of the Go library does.
With `encode` it makes bytes of the fields on the command line (JSON), in hexadecimal
digits; with `decode` it prints the fields of such bytes.
"""

import json
import sys

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf import timestamp_pb2

file = descriptor_pb2.FileDescriptorProto(
    name="entry.proto",
    package="leaderelection.storagepb",
    syntax="proto3",
    dependency=["google/protobuf/timestamp.proto"],
)
message = file.message_type.add(name="RaceEntry")
kind = descriptor_pb2.FieldDescriptorProto
for number, (name, type_, label) in enumerate(
    [
        ("election_number", kind.TYPE_UINT64, kind.LABEL_OPTIONAL),
        ("leader_id", kind.TYPE_STRING, kind.LABEL_OPTIONAL),
        ("host_port", kind.TYPE_STRING, kind.LABEL_REPEATED),
        ("term_expiry", kind.TYPE_MESSAGE, kind.LABEL_OPTIONAL),
        ("connection_parameters", kind.TYPE_BYTES, kind.LABEL_OPTIONAL),
    ],
    start=1,
):
    field = message.field.add(name=name, number=number, type=type_, label=label)
    if type_ == kind.TYPE_MESSAGE:
        field.type_name = ".google.protobuf.Timestamp"

pool = descriptor_pool.DescriptorPool()
pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
pool.Add(file)
name = "leaderelection.storagepb.RaceEntry"
RaceEntry = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))

command, argument = sys.argv[1:]
if command == "encode":
    print(json_format.ParseDict(json.loads(argument), RaceEntry()).SerializeToString().hex())
else:
    entry = RaceEntry.FromString(bytes.fromhex(argument))
    print(json.dumps(json_format.MessageToDict(entry, preserving_proto_field_name=True)))
