"""The function of C++ that `torch.stft` calls with signals that it has padded."""

from __future__ import annotations

from typing import Any

import torch

STFT: Any = torch._VF.stft
"""`(signals, n_fft, hop, window's length, window, normalized, onesided, return_complex, align_to_window)`."""
