"""One recording at a time in a process.

While a program is recorded, its modules hold fake tensors, for every thread. So whoever records, or reads what a
recording may hold in its hands, holds this lock; compiled programs run without it.
"""

from __future__ import annotations

import threading

RECORDING = threading.RLock()
