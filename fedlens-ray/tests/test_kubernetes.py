"""The manifest for Kubernetes has the fields that KubeRay knows; it was not applied to a cluster."""

from typing import Any

import yaml

from fedcore.base.files import PROJECT

# KubeRay's `raycluster_types.go`; `authOptions` is in its documentation of 1.5.1 and later.
CLUSTER = {"authOptions", "autoscalerOptions", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}
AUTOSCALER = {"idleTimeoutSeconds", "upscalingMode", "resources", "env"}
HEAD = {"rayStartParams", "template"}
WORKERS = {*HEAD, "groupName", "replicas", "minReplicas", "maxReplicas"}


def test_the_manifest_has_the_fields_of_kuberay() -> None:
    manifest: dict[str, Any] = yaml.safe_load((PROJECT / "examples/kubernetes/raycluster.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayCluster")
    spec = manifest["spec"]
    assert spec.keys() <= CLUSTER and spec["autoscalerOptions"].keys() <= AUTOSCALER
    assert spec["headGroupSpec"].keys() <= HEAD
    assert spec["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}, "Ray's parameters are text"
    for group in spec["workerGroupSpecs"]:
        assert group.keys() <= WORKERS
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        (container,) = group["template"]["spec"]["containers"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in group["template"]["spec"]["volumes"]}
