"""FedGH on CLIP trains one header on the server from class means that the clients send (Yi et al., 2023).

    client i: trains W, b by CE(W h + b), and sends u_i,k = mean of h over its images of class k
    server:   SGD on all (u_i,k, k), in an order drawn for the round; W, b go to every client

Changed from the paper: classes with a single image are not sent, because their mean is the image's embedding
(``fewest_images``). Reading: CLIP is frozen, so that the means do not depend on the clients' training.
"""

from dataclasses import replace

from fedcore import methods as fl
from fedcore.base.lazy import Tensor, torch
from fedcore.base.lazy import functional as F
from fedcore.methods.baselines.clip_fc import CLIPFC, CLIPFCConfig


class FedGHConfig(CLIPFCConfig):
    """Hyper-parameters of FedGH(C); the header is that of CLIP-FC.

    The authors' code also clips gradients to a norm of 50. That is left out: on raw embeddings a gradient is
    at most sqrt(2 (|h|^2 + 1)) long, and CLIP's embeddings are too short for 50.
    """

    lr: fl.LearningRate = fl.hyper(1e-2, "Learning rate of the clients (FedGH: 0.01)")
    weight_decay: fl.WeightDecay = fl.hyper(
        1e-3, "Weight decay of the clients (authors' code: 0.001; the paper names none)"
    )
    momentum: fl.Momentum = fl.hyper(
        0.9, "SGD momentum of the clients (authors' code: 0.9; the paper names none)"
    )
    local_epochs: fl.Epochs = fl.hyper(
        10,
        "Passes over a client's data in one round (E; authors' code: 10); a client's "
        "upload does not depend on them",
    )
    weighting: fl.Weighting = fl.hyper(
        "uniform", "No effect: the server trains the header and averages nothing"
    )
    fewest_images: int = fl.hyper(
        2,
        "Images that a class needs on a client for its mean to be sent; 1 is the paper's, and "
        "sends the embedding itself of a class's only image",
        title="fewest images of a mean",
        ge=1,
        le=1000,
    )
    server_lr: fl.LearningRate = fl.hyper(
        1e-2,
        "Learning rate of the server's SGD (FedGH: 0.01)",
        title="server learning rate",
        search=fl.TENFOLD,
    )
    server_epochs: int = fl.hyper(1, "Server passes over the class means in a round", ge=0, le=1000)
    server_batch_size: fl.BatchSize = fl.hyper(1, "Class means in a server step (FedGH: one by one)")


@fl.method
class FedGH(CLIPFC):
    """W h + b, which the server trains on means of h; clients start each round from the server's."""

    name = "fedgh"
    about = fl.About(
        source="Yi et al., FedGH: Heterogeneous Federated Learning with Generalized Global Header, ACM MM "
        "2023, with CLIP as every client's model",
        summary="FedGH lets clients have different models with a common last layer, the header. "
        "Here all models are CLIP, which stays frozen, and the header is a linear layer on its embeddings. "
        "Clients train the header on their own images, but send the mean embeddings of their classes. "
        "The server trains the header on these means, and every client continues from it. "
        "The clients' trained headers are only evaluated before aggregation.",
        charts=(fl.DiagnosticChart("Class means that a client sends", {"class_means": ""}),),
    )
    clients_use_global = True
    Config = FedGHConfig
    config: FedGHConfig

    def upload(self, params: fl.Params, record: fl.Params, data: fl.LocalData) -> fl.Values:
        """Return the mean embedding of each class with enough images, and which class it is.

        Shape: means (participants, .., d), labels (participants, ..).
        """
        means, counts = fl.class_means(data.x, data.labels, data.mask, len(self.problem.classes))
        enough = counts >= self.config.fewest_images
        labels = torch.arange(counts.shape[1], device=counts.device).expand_as(counts)
        return {"means": fl.Ragged.pack(means, enough), "labels": fl.Ragged.pack(labels, enough)}

    def aggregate(self, state: fl.State, uploads: fl.Uploads, generator: fl.Generators) -> fl.State:
        """Train the header on all class means by SGD without momentum, in an order drawn for the round."""
        names = [self.problem.clients[c] for c in uploads.clients.tolist()]
        by_name = sorted(range(len(names)), key=names.__getitem__)  # not by the order of the clients
        sent = {name: uploads.ragged(name).per_client() for name in ("means", "labels")}
        means, labels = (torch.cat([sent[name][i] for i in by_name]) for name in ("means", "labels"))
        header = {name: value.clone() for name, value in state.shared.items()}
        for epoch in range(self.config.server_epochs if len(labels) else 0):
            order = torch.randperm(len(labels), generator=generator("header", epoch)).to(labels.device)
            for rows in order.split(self.config.server_batch_size):
                leaves = {name: value.requires_grad_() for name, value in header.items()}
                scores = self.logits({n: v[None] for n, v in leaves.items()}, {}, means[None, rows])[0]
                gradients = torch.autograd.grad(F.cross_entropy(scores, labels[rows]), list(leaves.values()))
                header = {
                    name: (value - self.config.server_lr * gradient).detach()
                    for (name, value), gradient in zip(leaves.items(), gradients, strict=True)
                }
        return replace(state, shared=header)

    def diagnostics(
        self, before: fl.State, trained: fl.Params, uploads: fl.Uploads, data: fl.LocalData
    ) -> dict[str, Tensor]:
        """Return how many class means each participant sent."""
        return {"class_means": uploads.ragged("means").lengths}

    def round_log(self, uploads: fl.Uploads) -> list[str]:
        sent = zip(uploads.clients.tolist(), uploads.ragged("means").lengths.tolist(), strict=True)
        fewest = self.config.fewest_images
        return [
            f"client '{self.problem.clients[c]}' has no class of {fewest} images and sends no mean"
            for c, count in sent
            if not count
        ]
