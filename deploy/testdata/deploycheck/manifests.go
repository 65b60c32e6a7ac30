package main

import (
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// kinds are Kubernetes' types of the objects in the manifests.
var kinds = map[string]func() any{
	"v1/Namespace":                       func() any { return &corev1.Namespace{} },
	"v1/ServiceAccount":                  func() any { return &corev1.ServiceAccount{} },
	"v1/ConfigMap":                       func() any { return &corev1.ConfigMap{} },
	"v1/Service":                         func() any { return &corev1.Service{} },
	"apps/v1/Deployment":                 func() any { return &appsv1.Deployment{} },
	"apps/v1/DaemonSet":                  func() any { return &appsv1.DaemonSet{} },
	"policy/v1/PodDisruptionBudget":      func() any { return &policyv1.PodDisruptionBudget{} },
	"networking.k8s.io/v1/NetworkPolicy": func() any { return &networkingv1.NetworkPolicy{} },
}

// manifests builds the kustomization in a folder like `kubectl apply -k`, and
// decodes each object into its type; an unknown field is an error.
func manifests(folder string) ([]any, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, err
	}
	var objects []any
	var problems []error
	for _, r := range built.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			return nil, err
		}
		known := kinds[r.GetApiVersion()+"/"+r.GetKind()]
		if known == nil {
			problems = append(problems, fmt.Errorf("%s: unknown kind", r.CurId()))
			continue
		}
		object := known()
		if err := yaml.UnmarshalStrict(text, object); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", r.CurId(), err))
		}
		objects = append(objects, object)
	}
	return objects, errors.Join(problems...)
}
