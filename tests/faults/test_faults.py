"""Injected faults on a real network: each has its error kind, and none costs more than its trial."""

import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import select

from records import database
from records.models import BestRecord, Job, MeasureRecord
from scheduler.budget import Budget
from tests.cli import Cli, finish
from tests.engines import toy_network

# The module itself imports TVM, which only workers do.
FAULTY = "tests.engines.faulty"

pytestmark = pytest.mark.tvm
