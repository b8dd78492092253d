"""A clock that a test sets."""


class FakeClock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def step(self, seconds: float) -> None:
        """Go on."""
        self.seconds += seconds
