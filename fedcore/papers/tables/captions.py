"""What each table of the papers shows, after its printed caption."""

from __future__ import annotations

CAPTIONS: dict[tuple[str, str], str] = {
    ("fedot", "1"): "Overview of generalization, personalization, and comprehensive accuracies across five "
    "datasets",
    ("fedot", "2"): "Comparison of generalization accuracy (%) and the final condition number κ",
    ("fedot", "3"): "Accuracy results from experiments with different initialization methods for global "
    "parameters",
    ("fedot", "5"): "The generalization accuracy of FEMNIST and PACS",
    ("fedot", "6"): "The generalization accuracy of Office-Home, VLCS, and TerraIncognita",
    ("fedot", "7"): "The personalization accuracy of FEMNIST and PACS",
    ("fedot", "8"): "The personalization accuracy of Office-Home, VLCS, and TerraIncognita",
    ("fedot", "9"): "The comprehensive accuracy of FEMNIST and PACS",
    ("fedot", "10"): "The comprehensive accuracy of Office-Home, VLCS, and TerraIncognita",
    ("fedot_conference", "main"): "Accuracies averaged over the five datasets",
    ("fedot_conference", "gradient conflict"): "Cosine similarity of the clients' pseudo-gradients",
    ("sdfed", "1"): "Comparison in the single-domain scenarios",
    ("sdfed", "2"): "Comparison in the OfficeHome: overall accuracy and the average accuracy for each domain",
    ("sdfed", "3"): "Comparison in the Office31: overall accuracy and the average accuracy for each domain",
    ("sdfed", "4"): "Comparison under model heterogeneity",
    ("sdfed", "6"): "Ablation study of SDFed performance after removing each component individually",
    ("sdfed", "7"): "Comparison of SDFed variants and baseline methods across 100 clients",
    ("fedalign", "1"): "Global and local performance comparison (%) of different methods on six benchmark "
    "datasets under different data settings; the paper prints local performance as a superscript",
    ("fedalign", "2"): "Global accuracy (%) of ablation study on text description, additional loss, and "
    "weight selection for training and aggregation",
    ("fedalign", "4"): "Trainable parameters (M) of the text and image encoder with different LoRA rank r "
    "and the LoRA starting layer l",
    ("fedalign", "5"): "Global and local performance comparison (%) of different methods on five benchmark "
    "datasets under different data settings; the paper prints local performance as a superscript",
    ("fedalign", "6"): "Test accuracy (%) over the zero-shot CLIP with different Transformer architectures "
    "on five benchmark datasets; ST and GT are the input styles of the text description",
    ("fedalign", "7"): "Global and local performance (%) with the Transformer architecture ViT-B/16; the "
    "paper prints the difference to ViT-B/32 as a superscript, which is left out here",
    ("fedalign", "8"): "Global and local performance comparison (%) of different similarity functions on "
    "five benchmark datasets; the paper prints local performance as a superscript",
    ("feddeap", "1"): "Comparison of classification accuracy between FedDEAP and baselines on PACS, "
    "DomainNet, and Office datasets",
    ("feddeap", "2"): "Comparison of classification accuracy between FedDEAP and baselines on DDR dataset",
    ("feddeap", "3"): "Ablation study on different components across four datasets",
    ("feddeap", "4"): "Comparison of cost and performance across different methods",
    ("feddeap", "5"): "Effect of number of personalized and global prompts on DomainNet",
}
