"""Show the life of one value: when it was computed, read, weighed, dropped, recomputed and freed.

  dtr-fx why zoo:gpt native_dropout_1:0 --budget 40% --planner online --heuristic dtr-eq
  dtr-fx why plan.json gelu_1

VALUE is a name that dtr-fx diff prints: "native_dropout_1:0" is the first of several outputs of an operator.
The numbers are positions in the plan:

  native_dropout_1:0: activation of 512 KiB, 4 drops, 4 recomputes at 165 µs
  aten.native_dropout.default  blocks.0.attention  gpt.py:29 in forward: mixed = F.scaled_dot_product_a…

      52  forward   computed    native_dropout_1; 11.9 MiB live
      55  forward   read        by expand_2; 10.7 MiB live
      61  forward   read        by bmm_1; 10.5 MiB live
      63  forward   dropped     budget, score 3.13e-08, 41.3 µs again, away 53.0 ms; 9.74 MiB live
                                gone for 1748 operators, 58.2 ms; kept: 28.5 MiB live at most
     325  forward   weighed     for gelu_3: score 3.13e-08, 3 of 76; native_layer_norm_1:0 went, 1.51…
     325  forward   weighed     for gelu_3: score 3.13e-08, 1 of 74: it went
    2013  backward  recomputed  for mm_88; 20.5 MiB live
    2016  backward  read        by expand_2_recompute; 19.4 MiB live

"weighed" is each time that room was made and the value could have gone: its score, its place among the
candidates (1 goes), and what went instead, with its score. A drop stands where the value was read last:
"again" is the time to make the value again, "away" the compute until then. Only a heuristic scores. A search
(the default planner) weighs whole plans; "kept" is the memory that the step would take in the meantime.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from dtr_fx.cli import plans
from dtr_fx.errors import CommandError
from dtr_fx.inspect.life import life_of, render_life


def add_arguments(parser: argparse.ArgumentParser) -> None:
    plans.add_arguments(parser, html=False)
    parser.add_argument("value", metavar="VALUE", help="a name that dtr-fx diff prints")


def run(arguments: argparse.Namespace) -> None:
    plans.check(arguments)
    lives, missing = [], None
    for report in plans.reports_of(arguments, watch=arguments.value):
        try:
            lives.append(life_of(report, arguments.value))
        except CommandError as error:
            missing = error
    if missing is not None and not lives:
        raise missing
    plans.print_each(arguments, lives, asdict, render_life)
