"""Every registered mixer with every option it declares, found by walking the registry: no test names a mixer here."""

from __future__ import annotations

from tokmix.contract.cases import DIM, MAX_LEN, Case, cases, lay_out, leaves, other_values, tokens

__all__ = ["ALL", "CAUSAL", "DEFAULTS", "DIM", "MAX_LEN", "Case", "cases", "leaves", "other_values", "lay_out", "tokens"]

ALL, REFUSED = cases()
for _case, _error in REFUSED.items():  # an option may ask for another one or for the causal form; it must say so
    assert any(words in str(_error) for words in ("causal=True only", "is for variant", "does not divide")), (_case, _error)
CAUSAL = [case for case in ALL if case.steps]
DEFAULTS = [case for case in ALL if not case.options]
