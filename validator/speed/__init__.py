"""Time: an architecture, a workload and a device in, seconds by term out. Knows no YAML key and no product."""

from .course import Course, Part, RunTime, Span, run_time
from .device import Device
from .step import StepTime, step_time
from .terms import Term

__all__ = ["Course", "Device", "Part", "RunTime", "Span", "StepTime", "Term", "run_time", "step_time"]
