"""The methods of the contract, from its service descriptors; generated stubs are not needed."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from headrace_proto.v1 import engine_service_pb2, model_service_pb2, request_service_pb2


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes:
        name: full name, such as "headrace.v1.RequestService/StartRequest".
        request: class of the request message.
        response: class of the response message.
        streams: True if responses are streamed.
        converses: True if requests are streamed too.
    """

    name: str
    request: type[Message]
    response: type[Message]
    streams: bool
    converses: bool


def _method(service: str, method: MethodDescriptor) -> Method:
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    return Method(f"{service}/{method.name}", request, response, method.server_streaming, method.client_streaming)


_ALL = [
    _method(service.full_name, method)
    for file in (request_service_pb2, model_service_pb2, engine_service_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]

METHODS = {method.name: method for method in _ALL if not method.converses}
"""All methods with one request message, by full name."""

CONVERSATIONS = {method.name: method for method in _ALL if method.converses}
"""All methods with a stream of request messages, by full name."""
