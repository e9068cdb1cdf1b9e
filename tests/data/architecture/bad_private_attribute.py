# module: dovetail.ops.bad_private_attribute
# expect: private-attribute
from typing import Any


def schema(overload: Any) -> Any:
    return overload._schema
