# module: dovetail.ops.bad_private_attribute_getattr
# expect: private-attribute
from typing import Any


def version(tensor: Any) -> int:
    return int(getattr(tensor, "_version", 0))
