{{/*
Limits what the operator's account may write, where RBAC can only grant a whole kind. Each entry names the code that
needs it. Updates are also checked against the old object: otherwise a patch of a label would permit the next one.
*/}}
{{- define "operator.admissionPolicies" -}}
{{- $before := "oldObject.metadata.?annotations.orValue({})" -}}
{{- $after := "object.metadata.?annotations.orValue({})" -}}
{{- $ours := list "kubernetes.dask.org/cooldown-until" "dask-adaptive.dev/adopted" | toJson -}}
# Deletes pods of workers (kube/platform.py, restart_worker).
- name: pods
  rule: {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [DELETE]}
  validations:
  - expression: oldObject.?metadata.?labels[?"dask.org/component"].orValue("") == "worker"
    message: dask-adaptive may delete only pods of Dask workers
# Deletes the Deployment of a worker that has left (kube/platform.py, delete_worker).
- name: deployments
  rule: {apiGroups: [apps], apiVersions: [v1], resources: [deployments], operations: [DELETE]}
  validations:
  - expression: oldObject.?metadata.?labels[?"dask.org/component"].orValue("") == "worker"
    message: dask-adaptive may delete only Deployments of Dask workers
# Writes the agent (kube/agent_config.py) and histories (kube/reporter.py). The API server answers an empty patch with
# the object, so this also keeps the operator from reading other ConfigMaps.
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
    message: dask-adaptive may not write this ConfigMap, because it is not its own; rename or delete it
# Pauses and resumes dask-kubernetes' autoscaler (controller/annotated_policies.py, cli/tidy.py).
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
# Writes policies made from annotations or by adoption (controller/annotated_policies.py, cli/tidy.py). Of all other
# policies it writes only the status.
- name: adaptivepolicies
  rule: {apiGroups: [dask-adaptive.dev], apiVersions: ["*"], resources: [adaptivepolicies], operations: [CREATE, UPDATE, DELETE]}
  validations:
  - expression: >-
      [object, oldObject].all(o, o == null ||
      o.?metadata.?labels[?"dask-adaptive.dev/managed-by"].orValue("") in ["annotations", "adoption"])
    message: dask-adaptive may write only AdaptivePolicies that it made, which have the label dask-adaptive.dev/managed-by
# Creates the Lease (controller/lease.py), in a namespace with Leases of Kubernetes.
- name: leases
  rule: {apiGroups: [coordination.k8s.io], apiVersions: [v1], resources: [leases], operations: [CREATE]}
  validations:
  - expression: object.metadata.name == "{{ include "operator.rightsName" . }}"
    message: dask-adaptive may create only its own Lease
# Writes events (kube/reporter.py).
- name: events
  rule: {apiGroups: [""], apiVersions: [v1], resources: [events], operations: [CREATE, UPDATE]}
  validations:
  - expression: '[object, oldObject].all(o, o == null || o.?reportingComponent.orValue("") == "dask-adaptive-operator")'
    message: dask-adaptive may write only its own events
{{- end -}}
