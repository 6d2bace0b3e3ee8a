"""Zero-shot CLIP predicts the class with the most similar text; nothing is trained (Radford et al., 2021).

scores s cos(h, t_k) with t_k the text feature of the class prompt, or of a written description
"""

from pydantic import ConfigDict

from fedcore import methods as fl
from fedcore.clip.prompts import sentences
from fedcore.methods.class_texts import ClassTextConfig, Described


class ZeroShotConfig(ClassTextConfig):
    """The choice between the data set's prompt (``data.template``) and written descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@fl.method
class ZeroShot(Described):
    """Class prompts against images: the baseline that every trained method has to beat."""

    name = "zero-shot"
    about = fl.About(
        source="Radford et al., Learning Transferable Visual Models From Natural Language Supervision, "
        "ICML 2021",
        summary="CLIP as it comes, without any training. "
        "Every class is described by one sentence: the data set's prompt with the class name in it, or, "
        "with class_text = description, one of its written descriptions. "
        "An image gets the class of the sentence that has the largest cosine with it. "
        "Nothing is sent and nothing changes between rounds. "
        "It is the accuracy that federated training has to exceed.",
    )
    trains = False
    clients_use_global = True
    backbones = "any"
    Config = ZeroShotConfig

    def __init__(self, config: ZeroShotConfig, problem: fl.Problem) -> None:
        super().__init__(config, problem)
        described = config.class_text == "description"
        self.text = sentences(problem.backbone, self.texts) if described else problem.class_features

    def models(self, state: fl.State) -> fl.Models:
        """Return the same class features for all models; none are sent: clients encode the prompts."""
        return fl.Models({"text": self.text[None]}, self.repeat({"text": self.text}))

    def head(self, params: fl.Params, data: fl.LocalData | None) -> fl.Params:
        """Return class features per model. Shape: text (models, classes, d)."""
        models = 1 if data is None else len(data.clients)
        return {"text": self.text.expand(models, *self.text.shape)}
