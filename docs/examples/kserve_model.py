"""A model server of KServe for any artifact: kserve_model.py --model_name classifier --model_dir /mnt/models"""

import argparse
import os

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer, model_server
from kserve.errors import InvalidInput
from kserve.utils.numpy_codec import from_np_dtype

import subtune
from subtune.core.errors import InputError


class Classifier(Model):
    def __init__(self, name: str, folder: str):
        super().__init__(name)
        self.folder = folder

    def load(self) -> bool:
        self.artifact = subtune.load(self.folder)
        self.ready = True
        return self.ready

    def predict(self, payload: InferRequest, headers=None, response_headers=None) -> InferResponse:
        try:
            outputs = self.artifact.run({one.name: one.as_numpy() for one in payload.inputs})
        except InputError as e:
            raise InvalidInput(str(e)) from e  # status 400
        found = []
        for name, array in outputs.items():
            output = InferOutput(name, list(array.shape), from_np_dtype(array.dtype))
            output.set_data_from_numpy(array)
            found.append(output)
        return InferResponse(payload.id, self.name, found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(parents=[model_server.parser])
    args, _ = parser.parse_known_args()
    model = Classifier(args.model_name, os.path.join(args.model_dir, "classifier.subtune"))
    model.load()
    ModelServer().start([model])
