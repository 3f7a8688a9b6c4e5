"""Checks that the scripts with Triton's official clients share."""

from tritonclient.utils import InferenceServerException


def expect_error(part, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except InferenceServerException as error:
        assert part in str(error), error
        return
    raise AssertionError(f"expected an error with {part!r}")
