{{/*
What the operator's account may write, kind by kind, where RBAC can grant only a whole kind. Each says who in the
code needs it. An update is judged by the object as it was, too: else a label, patched first, would open the rest.
*/}}
{{- define "operator.admissionPolicies" -}}
{{- $before := "oldObject.metadata.?annotations.orValue({})" -}}
{{- $after := "object.metadata.?annotations.orValue({})" -}}
{{- $ours := list "kubernetes.dask.org/cooldown-until" "dask-adaptive.dev/adopted" | toJson -}}
# Pods of workers are deleted (kube/platform.py, restart_worker).
- name: pods
  rule: {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [DELETE]}
  validations:
  - expression: oldObject.?metadata.?labels[?"dask.org/component"].orValue("") == "worker"
    message: dask-adaptive may delete only pods of Dask workers
# The Deployment of a worker that has left is deleted (kube/platform.py, delete_worker).
- name: deployments
  rule: {apiGroups: [apps], apiVersions: [v1], resources: [deployments], operations: [DELETE]}
  validations:
  - expression: oldObject.?metadata.?labels[?"dask.org/component"].orValue("") == "worker"
    message: dask-adaptive may delete only Deployments of Dask workers
# The agent (kube/agent_config.py), and histories (kube/reporter.py). A patch that changes nothing answers with the
# object, so this keeps ConfigMaps of others from being read as well.
- name: configmaps
  rule: {apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE, UPDATE]}
  validations:
  - expression: >-
      object.metadata.name.endsWith("-adaptive-history") ||
      object.metadata.name.matches("^dask-adaptive-agent-[0-9a-f]{8}$") && object.?immutable.orValue(false)
    message: dask-adaptive may write only histories (…-adaptive-history) and its agent (dask-adaptive-agent-…, immutable)
  - expression: >-
      [object, oldObject].all(o, o == null ||
      o.?metadata.?labels[?"app.kubernetes.io/managed-by"].orValue("") == "dask-adaptive-operator" ||
      o.?metadata.?ownerReferences.orValue([]).exists(owner, owner.kind == "AdaptivePolicy"))
    message: dask-adaptive may not write this ConfigMap, which is somebody else's; rename or delete that one
# Upstream's autoscalers are put to rest and woken (controller/annotated_policies.py, cli/tidy.py).
- name: daskautoscalers
  rule: {apiGroups: [kubernetes.dask.org], apiVersions: ["*"], resources: [daskautoscalers], operations: [UPDATE]}
  validations:
  - expression: object.?spec == oldObject.?spec
    message: dask-adaptive may not change the spec of a DaskAutoscaler
  - expression: >-
      object.metadata.?labels == oldObject.metadata.?labels &&
      object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences &&
      object.metadata.?finalizers == oldObject.metadata.?finalizers
    message: dask-adaptive may not change labels, owners or finalizers of a DaskAutoscaler
  - expression: >-
      {{ $before }}.all(k, k in {{ $ours }} || {{ $after }}[?k] == optional.of({{ $before }}[k])) &&
      {{ $after }}.all(k, k in {{ $ours }} || k in {{ $before }})
    message: dask-adaptive may change only its own annotations of a DaskAutoscaler
# Policies made from annotations and by adoption (controller/annotated_policies.py, cli/tidy.py); of people's
# policies only the status is written.
- name: adaptivepolicies
  rule: {apiGroups: [dask-adaptive.dev], apiVersions: ["*"], resources: [adaptivepolicies], operations: [CREATE, UPDATE, DELETE]}
  validations:
  - expression: >-
      [object, oldObject].all(o, o == null ||
      o.?metadata.?labels[?"dask-adaptive.dev/managed-by"].orValue("") in ["annotations", "adoption"])
    message: dask-adaptive may write only AdaptivePolicies that it made, which have the label dask-adaptive.dev/managed-by
# The Lease (controller/lease.py), which stands among those of Kubernetes itself.
- name: leases
  rule: {apiGroups: [coordination.k8s.io], apiVersions: [v1], resources: [leases], operations: [CREATE]}
  validations:
  - expression: object.metadata.name == "{{ include "operator.rightsName" . }}"
    message: dask-adaptive may create only its own Lease
# Events (kube/reporter.py).
- name: events
  rule: {apiGroups: [""], apiVersions: [v1], resources: [events], operations: [CREATE, UPDATE]}
  validations:
  - expression: '[object, oldObject].all(o, o == null || o.?reportingComponent.orValue("") == "dask-adaptive-operator")'
    message: dask-adaptive may write only its own events
{{- end -}}
