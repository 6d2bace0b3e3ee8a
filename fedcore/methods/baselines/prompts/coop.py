"""CoOp (local) learns a prompt on every client and shares nothing (Zhou et al., 2022).

The equations are those of PromptFL with a context v_i for each client i, and without a server. All clients
start from PromptFL's first context, so that the two differ only in what is shared.
"""

from fedcore import methods as fl
from fedcore.methods.baselines.prompts.promptfl import PromptFL, PromptFLConfig


class CoOpConfig(PromptFLConfig):
    """PromptFL's hyper-parameters, so that the two differ only in what is shared."""

    lr: fl.LearningRate = fl.hyper(1e-3, "Learning rate of local SGD (as PromptFL: 0.001; CoOp: 0.002)")
    weighting: fl.Weighting = fl.hyper("samples", "No effect: the server averages nothing")
    proximal: fl.LossWeight = fl.hyper(0.0, "No effect: clients receive nothing")


@fl.method
class CoOp(PromptFL):
    """PromptFL without the server: the context stays on the client that trains it."""

    name = "coop"
    about = fl.About(
        source="Zhou et al., Learning to Prompt for Vision-Language Models, IJCV 2022",
        summary="CLIP stays frozen; a short sequence of word vectors before every class name is learned, "
        "as in PromptFL. "
        "Here every client trains its own and keeps it. "
        "Nothing is sent, and there is no global model. "
        "All clients start from the same random vectors and continue from the end of the last round. "
        "The difference to PromptFL is what federated averaging gains or costs.",
    )
    clients_use_global = False
    Config = CoOpConfig
    shared = ()

    def init(self, generator: fl.Generators) -> fl.State:
        """Return a copy of PromptFL's first context for each client. Shape: context (clients, M, m)."""
        first = super().init(generator).shared
        return fl.State(local=self.repeat(first))
