"""What a program reads besides its inputs and Python's objects, and no compiled program can repeat."""

from __future__ import annotations

from dovetail.errors.base import DovetailError


class OutsideRead(DovetailError):
    """The program asks for something outside Python's objects, and a compiled program would keep the first answer."""

    code = "DT-CAPTURE-012"
    summary = "the program calls {function}, which {why}."
    because = "the compiled program would keep the answer that it got while it was recorded"
    way_out = (
        "call it before, and pass the answer as an argument; a step may call it in a dovetail.host_call, or run in "
        "eager mode (on_unsupported='eager')"
    )
    rows = ("origin",)


class OtherSettingsInside(DovetailError):
    """The program runs operators under other settings of torch's than the call began with."""

    code = "DT-CAPTURE-015"
    summary = "the program runs an operator under {setting} = {now}, which was {before} when the call began."
    because = "kernels look at the setting when they run, and a program runs all of them under that of its caller"
    way_out = "set it around the call, and not inside it; a step may run in eager mode (on_unsupported='eager')"
    rows = ("origin",)


class IteratorRead(DovetailError):
    """The program reads from an iterator or a file that was there before, and each read moves that on."""

    code = "DT-CAPTURE-013"
    summary = "the program reads from {kind}, which moves on with each read."
    because = "the compiled program would keep what it got while it was recorded"
    way_out = (
        "read from it before, and pass what it gave as an argument; a step may run in eager mode "
        "(on_unsupported='eager')"
    )
    rows = ("origin",)


class GradientAccess(DovetailError):
    """A function reads or sets the `.grad` of a tensor that it did not make, where its program could not follow."""

    code = "DT-CAPTURE-014"
    summary = "the program {does} the gradient (`.grad`) of {name}."
    because = "a gradient is not among the inputs and outputs of a compiled function, so its program would miss it"
    way_out = "{hint}"


class WrittenArray(DovetailError):
    """The program changes an array of NumPy that lends its memory to a tensor, through either of them."""

    code = "DT-ALIAS-005"
    summary = "the program writes an array of NumPy {how}."
    because = "what NumPy reads is read while the program is recorded, or before it runs, and would not see the write"
    way_out = (
        "write a copy (torch.from_numpy(array).clone(), torch.tensor(array)), or hold the tensor instead of the array; "
        "a step may run in eager mode (on_unsupported='eager')"
    )
    rows = ("origin",)
