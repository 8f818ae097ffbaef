"""The laboratory: the paper's experiments, static and exact planners, models to try, and measurements.

Nothing of the product imports it; the commands ``simulate``, ``figures``, ``record`` and ``bench`` do, and
targets such as ``zoo:gpt``.  The rooms of the paper (logs, networks, replays) do without torch.
"""

# The models of ``dtr_fx.lab.zoo``, which needs torch: first those of the paper's evaluation.
PAPER = tuple("resnet32 densenet121 inception unet transformer lstm treelstm unrolled_gan".split())
MODELS = (
    *PAPER,
    *"gpt resnet50 shufflenet mlp unet_bn lstm_cell vit".split(),
    *"gpt_full resnet50_full unet_full mlp_full lstm_full gpt2 resnet50_32".split(),
)
