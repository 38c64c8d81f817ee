"""Properties of architectures that config.json lacks, from the model files of vLLM 0.33.

Only what config.json leaves open and what matters for memory: `scripts/prove_formula.py` compares
the weights and the cache of each with vLLM's. An architecture that is not listed is treated as a
Llama, with a wider margin of error, and the plan notes that.
"""

from __future__ import annotations

from clusterctl.models.layers import Family

LLAMA = Family()
_QWEN2 = Family(qkv_bias=True)
_QWEN3 = Family(qk_norm=True)
_GEMMA = Family(qk_norm=True, norms=4, tied=True, window_every=6)

_ARCHITECTURES: tuple[tuple[Family, str], ...] = (
    (
        LLAMA,
        """
        LlamaForCausalLM MistralForCausalLM Mistral3ForConditionalGeneration MixtralForCausalLM
        GraniteForCausalLM Phi3ForCausalLM Llama4ForConditionalGeneration
        DeepseekV2ForCausalLM DeepseekV3ForCausalLM DeepseekV32ForCausalLM DeepseekV4ForCausalLM
        GlmMoeDsaForCausalLM KimiK25ForConditionalGeneration LLaMAForCausalLM InternLM3ForCausalLM
        IQuestCoderForCausalLM TeleChat3ForCausalLM Ministral3ForCausalLM GraniteMoeForCausalLM
        GraniteMoeSharedForCausalLM GraniteSWAForCausalLM GraniteMoeSWAForCausalLM
        Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM StableLmForCausalLM PhiMoEForCausalLM
        Glm4MoeLiteForCausalLM AXK1ForCausalLM
        CohereForCausalLM Cohere2ForCausalLM Cohere2MoeForCausalLM
        DeepseekForCausalLM
        Glm4vForConditionalGeneration GlmOcrForConditionalGeneration
        Qwen2AudioForConditionalGeneration AudioFlamingo3ForConditionalGeneration
        HCXVisionV2ForCausalLM HyperCLOVAXForCausalLM Idefics3ForConditionalGeneration
        InternVLForConditionalGeneration LagunaForCausalLM LlavaForConditionalGeneration
        LlavaNextForConditionalGeneration LlavaNextVideoForConditionalGeneration
        LlavaOnevisionForConditionalGeneration PaddleOCRVLForConditionalGeneration
        PaliGemmaForConditionalGeneration Qwen2_5OmniForConditionalGeneration
        Qwen3ASRForConditionalGeneration SmolVLMForConditionalGeneration Alpamayo2Super
        Glm4vMoeForConditionalGeneration KimiVLForConditionalGeneration
        """,
    ),
    (
        _QWEN2,
        """
        Qwen2ForCausalLM Qwen2MoeForCausalLM Qwen2VLForConditionalGeneration MiMoForCausalLM
        Qwen2_5_VLForConditionalGeneration
        """,
    ),
    (
        _QWEN3,
        """
        Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3VLForConditionalGeneration
        Qwen3VLMoeForConditionalGeneration MiniMaxM2ForCausalLM Glm4MoeForCausalLM
        MiniMaxM3SparseForConditionalGeneration OlmoeForCausalLM Exaone4ForCausalLM
        ExaoneMoeForCausalLM ExaoneMoEForCausalLM HYV3ForCausalLM
        Step3p5ForCausalLM
        """,
    ),
    (
        Family(qk_norm=True, gated_query=True, states=True, splits_drafter=True),
        """
        Qwen3NextForCausalLM Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration
        """,
    ),
    (
        Family(
            qk_norm=True, gated_query=True, states=True, splits_drafter=True, text_only=True
        ),
        "Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM",
    ),
    (Family(states=True), "KimiK3ForConditionalGeneration KimiLinearForCausalLM"),
    (
        Family(one_block=True, gated_mlp=False, states=True, state_bytes=4, rotary=False,
            splits_drafter=True,),
        "NemotronHForCausalLM",
    ),
    (Family(sinks=True), "MiMoV2FlashForCausalLM"),
    (Family(norms=4, tied=True, window_every=2), "Gemma2ForCausalLM"),
    (Family(tied=True), "GemmaForCausalLM"),
    (
        _GEMMA,
        """
        Gemma3ForCausalLM Gemma3ForConditionalGeneration Gemma4ForCausalLM
        Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration
        """,
    ),
    (
        Family(qkv_bias=True, out_bias=True, sinks=True, experts_bias=True),
        "GptOssForCausalLM",
    ),
    (Family(norms=4), "Glm4ForCausalLM"),
    (Family(expanded=True), "MiniCPM3ForCausalLM"),
    (
        Family(qk_norm=True, norms=4, gated_query=True),
        "MuseGlimmerForCausalLM MuseGlimmerForConditionalGeneration",
    ),
    (
        Family(qk_norm=True, gated_query=True, states=True),
        "MiniCPMV4_6ForConditionalGeneration MiniCPMV4_7ForConditionalGeneration",
    ),
    (Family(qk_norm=True, norms=4, gated_query=True), "AfmoeForCausalLM"),
    (Family(gated_mlp=False), "NemotronForCausalLM GPTJForCausalLM"),
    (Family(gated_mlp=False, tied=True), "FalconForCausalLM"),
    (
        Family(qkv_bias=True, gated_mlp=False, tied=True, positions=True),
        "GPT2LMHeadModel OPTForCausalLM",
    ),
    (
        Family(states=True),
        """
        JambaForCausalLM GraniteMoeHybridForCausalLM Lfm2ForCausalLM Lfm2MoeForCausalLM
        OlmoHybridForCausalLM Lfm2VlForConditionalGeneration
        """,
    ),
    (
        Family(states=True, one_block=True, rotary=False),
        "MambaForCausalLM Mamba2ForCausalLM FalconMambaForCausalLM",
    ),
    (Family(states=True, both_mixers=True), "FalconH1ForCausalLM"),
    (
        Family(qkv_bias=True, out_bias=True, norms=4, tied=True, gated_mlp=False, mlp_bias=True,
            rotary=False,),
        """
        BertModel BertForSequenceClassification RobertaModel RobertaForSequenceClassification
        XLMRobertaModel XLMRobertaForSequenceClassification
        """,
    ),
    (
        Family(qkv_bias=True, out_bias=True, norms=6, tied=True, gated_mlp=False, mlp_bias=True,
            positions=True, crosses=True,),
        "WhisperForConditionalGeneration",
    ),
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    name: family for family, names in _ARCHITECTURES for name in names.split()
}
