from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_F16: _ClassVar[DType]
    DTYPE_F32: _ClassVar[DType]
    DTYPE_F64: _ClassVar[DType]
    DTYPE_I8: _ClassVar[DType]
    DTYPE_I16: _ClassVar[DType]
    DTYPE_I32: _ClassVar[DType]
    DTYPE_I64: _ClassVar[DType]
    DTYPE_U8: _ClassVar[DType]
    DTYPE_BOOL: _ClassVar[DType]
    DTYPE_BF16: _ClassVar[DType]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PARAMETER: _ClassVar[Role]
    ROLE_BUFFER: _ClassVar[Role]

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    ENCODING_F16: _ClassVar[Encoding]
    ENCODING_BF16: _ClassVar[Encoding]
    ENCODING_I8: _ClassVar[Encoding]

class DifferenceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIFFERENCE_KIND_UNSPECIFIED: _ClassVar[DifferenceKind]
    DIFFERENCE_KIND_EXACT: _ClassVar[DifferenceKind]
    DIFFERENCE_KIND_STEP_I8: _ClassVar[DifferenceKind]

class DigestKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIGEST_KIND_UNSPECIFIED: _ClassVar[DigestKind]
    DIGEST_KIND_BLAKE3: _ClassVar[DigestKind]
DTYPE_UNSPECIFIED: DType
DTYPE_F16: DType
DTYPE_F32: DType
DTYPE_F64: DType
DTYPE_I8: DType
DTYPE_I16: DType
DTYPE_I32: DType
DTYPE_I64: DType
DTYPE_U8: DType
DTYPE_BOOL: DType
DTYPE_BF16: DType
ROLE_UNSPECIFIED: Role
ROLE_PARAMETER: Role
ROLE_BUFFER: Role
ENCODING_UNSPECIFIED: Encoding
ENCODING_F16: Encoding
ENCODING_BF16: Encoding
ENCODING_I8: Encoding
DIFFERENCE_KIND_UNSPECIFIED: DifferenceKind
DIFFERENCE_KIND_EXACT: DifferenceKind
DIFFERENCE_KIND_STEP_I8: DifferenceKind
DIGEST_KIND_UNSPECIFIED: DigestKind
DIGEST_KIND_BLAKE3: DigestKind

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape", "role")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    role: Role
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., role: _Optional[_Union[Role, str]] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("tensors", "fingerprint")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    fingerprint: bytes
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
