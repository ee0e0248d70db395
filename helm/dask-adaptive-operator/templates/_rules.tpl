{{/* What the operator may do where Dask clusters are. Each rule says who needs it. */}}
{{- define "operator.rules" -}}
# The watches (kube/cache/world.py), and the lists that check them. The webhook lists policies, too: when a
# scheduler's pod is created, its policy may be newer than the watch's state (controller/webhook.py).
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivepolicies]
  verbs: [list, watch]
- apiGroups: [kubernetes.dask.org]
  resources: [daskclusters, daskworkergroups, daskautoscalers]
  verbs: [list, watch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods, services, resourcequotas]
  verbs: [list, watch]
{{- if not .Values.watch.namespaces }}
# Workers leave nodes that are about to go away (kube/nodes.py). Nodes are in no namespace: an operator
# with Roles only has a ClusterRole of its own for them, if watch.nodes asks for it.
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- end }}
{{- if or (not .Values.watch.namespaces) (eq .Values.watch.budgets "Namespaced") }}
{{ include "operator.budgetRules" . }}
{{- end }}
# Policies made from a DaskCluster's annotations or from an adopted DaskAutoscaler, whose annotation
# pauses upstream's autoscaler and resumes it (controller/annotated_policies.py).
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivepolicies]
  verbs: [create, patch, delete]
- apiGroups: [kubernetes.dask.org]
  resources: [daskautoscalers]
  verbs: [patch]
# Status and events (kube/reporter.py).
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivepolicies/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
# The history of a policy's decisions (kube/reporter.py), and the agent (kube/agent_config.py).
# RBAC can't restrict `create` to a name. There is no right to read ConfigMaps: the operator reads the
# answer to a patch.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, patch]
# Who may write the agent (kube/agent_config.py), which is code: an admission policy asks about this name. There is no such kind.
- apiGroups: [dask-adaptive.dev]
  resources: [agents]
  verbs: [create]
# Scaling: the number of workers, and the Deployment of a worker that has left (kube/platform.py).
- apiGroups: [kubernetes.dask.org]
  resources: [daskworkergroups/scale]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [delete]
{{- if .Values.allowDeleteCluster }}
# Deletes unused clusters if their policy asks for it (kube/platform.py, delete_cluster).
- apiGroups: [kubernetes.dask.org]
  resources: [daskclusters]
  verbs: [delete]
{{- end }}
# Workers that are replaced in place: their pod is deleted (kube/platform.py, restart_worker).
- apiGroups: [""]
  resources: [pods]
  verbs: [delete]
{{- with .Values.scheduler.tls }}
{{- with append .secretNames .secretName | compact | uniq }}
# Certificates for schedulers that take TLS only (kube/route.py).
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson . }}
  verbs: [get]
{{- end }}
{{- end }}
# Reads whether the namespace refuses the agent (kube/agent_config.py).
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- if .Values.watch.namespaceSelector }}
# Which namespaces have the labels of watch.namespaceSelector (controller/app.py).
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
{{- end }}
{{- if .Values.webhook.enabled }}
# The webhook reads the pod's owner, and its group's grace period (controller/webhook.py).
- apiGroups: [kubernetes.dask.org]
  resources: [daskclusters, daskworkergroups]
  verbs: [get]
{{- end }}
{{- end -}}

{{/* AdaptiveBudgets are in no namespace unless watch.budgets says so (controller/budget_keeper.py). */}}
{{- define "operator.budgetRules" -}}
# What clusters share, and who has what of it (controller/budget_keeper.py).
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivebudgets]
  verbs: [list, watch]
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivebudgets/status]
  verbs: [patch]
{{- if ne .Values.watch.budgets "Namespaced" }}
# Which namespaces a budget selects by their labels (kube/shared_budgets.py).
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
{{- end }}
{{- end }}
