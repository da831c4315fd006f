"""One test for many alike cases.

`@every(cases)` runs the body of a test for each case and reports all that fail. It is for tables with hundreds of rows
of which each takes a millisecond: pytest takes longer than that to collect, set up and report a test. Fixtures are
those of the one test, so a body that writes files needs a folder for each case.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any


def every(cases: Collection[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for tests whose first parameters are those of a case. Raises ValueError where there are no
    cases, as such a test could not fail."""
    if not cases:
        raise ValueError("no cases")

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(body).parameters.values())
        names = [each.name for each in parameters]
        first = next(iter(cases))
        taken = len(first) if type(first) is tuple else 1

        @functools.wraps(body)
        def test(**fixtures: Any) -> None:
            failed = []
            for case in cases:
                values = case if type(case) is tuple else (case,)
                try:
                    body(**dict(zip(names[:taken], values, strict=True)), **fixtures)
                except Exception as err:
                    err.add_note(f"case: {case!r}"[:500])
                    failed.append(err)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(cases)} cases", failed)

        vars(test)["__signature__"] = inspect.Signature(parameters[taken:])
        return test

    return decorate
