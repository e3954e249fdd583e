"""Convolutions of videos with windows of one image, as convolutions of images.

Where a window is (1, k, k), depth joins the batch. Channels last, that moves no number, and
convolutions over two axes have variants.
"""

from tvm import relax
from tvm.relax.expr_functor import mutator

from tuner.engines.relax.graph.passes.visitor import CallVisitor, const, dtype_of
from tuner.engines.relax.ir.tensor_types import shape_of

_LAYOUTS = {"nn.conv3d": ("NCDHW", "OIDHW")}
# The axes with depth next to the batch, and back.
_BY_IMAGE = [0, 2, 1, 3, 4]


@mutator
class WindowFlattener(CallVisitor):
    """Mutator of channels-first convolutions of three axes with flat, constant windows."""

    def rewrite(self, _original: relax.Call, call: relax.Call) -> relax.Expr:
        """Replace one convolution; all else stays."""
        attrs = call.attrs
        weight = self.weight_of(call, _LAYOUTS)
        if weight is None:
            return call
        padding = [int(n) for n in attrs.padding]
        depth = weight.shape[2], int(attrs.strides[0]), padding[0], padding[3]
        if depth != (1, 1, 0, 0):
            return call
        batch, channels, n_images, *size = shape_of(call.args[0])
        images = self.emit(relax.op.permute_dims(call.args[0], _BY_IMAGE))
        images = self.emit(relax.op.reshape(images, (batch * n_images, channels, *size)))
        convolved = relax.op.nn.conv2d(
            images,
            const(weight[:, :, 0], dtype_of(call.args[1])),
            strides=[int(n) for n in attrs.strides[1:]],
            padding=[*padding[1:3], *padding[4:]],
            dilation=[int(n) for n in attrs.dilation[1:]],
            groups=int(attrs.groups),
            out_dtype=attrs.out_dtype,
        )
        result = self.emit(convolved)
        video = self.emit(relax.op.reshape(result, (batch, n_images, *shape_of(result)[1:])))
        return relax.op.permute_dims(video, _BY_IMAGE)
