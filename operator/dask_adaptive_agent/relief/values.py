"""Types whose instances never change, so that nobody can tell one of them from its copy."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import re
import types
import uuid

#: Tuples and frozen sets are not here for what they hold: a pickler goes through that by itself.
VALUES: frozenset[type] = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, tuple, frozenset, range, slice),
        *(type(...), type(NotImplemented), type, re.Pattern),
        *(types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.ModuleType),
        *(types.CellType, types.GetSetDescriptorType, types.MemberDescriptorType),
        *(pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
        *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID),
    }
)
