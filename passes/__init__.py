"""FX passes, one file each.  A pass says what it requires and ensures; ``contract.Pipeline`` checks that.

propagate ─► storages ─► (costs) ─► (plan) ─► write ──────► verify ─► split ─► drops
shapes       who owns    seconds              Drop and      always    training  lowered
if missing   which bytes                      Recompute               only
"""
