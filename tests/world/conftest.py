"""The fixtures of the system tests."""

from __future__ import annotations

from conftest import *
