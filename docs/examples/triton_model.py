"""`model.py` of Triton's Python backend, for any artifact: it lies at classifier.subtune beside this file."""

import os

import triton_python_backend_utils as pb_utils

import subtune
from subtune.core.errors import InputError


class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.join(args["model_repository"], args["model_version"], "classifier.subtune")
        self.artifact = subtune.load(folder, threads=1, share_weights=True)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        names = [spec.name for spec in self.artifact.inputs]
        inputs = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in names}
        try:
            outputs = self.artifact.run(inputs)
        except InputError as e:  # one request's arrays: the others are answered
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(e)))
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])
