import torch, transformers as t
torch.manual_seed(0)
m=t.BertModel(t.BertConfig(num_hidden_layers=1),add_pooling_layer=False).eval(); m.config._attn_implementation="eager"
class W(torch.nn.Module):
    def __init__(s): super().__init__(); s.m=m
    def forward(s,input_ids,attention_mask): return s.m(input_ids=input_ids,attention_mask=attention_mask).last_hidden_state
b,s=torch.export.Dim("batch",min=1,max=8),torch.export.Dim("seq",min=1,max=512)
x=(torch.ones(2,17,dtype=torch.long),torch.ones(2,17,dtype=torch.long))
torch.onnx.export(W().eval(),x,"/tmp/q/dyn/two.onnx",dynamo=True,dynamic_shapes=({0:b,1:s},{0:b,1:s}),input_names=["input_ids","attention_mask"],external_data=False)
