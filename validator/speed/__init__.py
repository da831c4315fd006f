"""Time: an architecture, a workload and a device in, seconds by term out. Knows no YAML key and no product."""

from .device import Device
from .step import StepTime, step_time
from .terms import Term

__all__ = ["Device", "StepTime", "Term", "step_time"]
