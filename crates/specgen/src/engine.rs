//! `Engine`: what is loaded once and shared: a target, its drafter, tokenizer and chat template.

use std::{
    borrow::Cow,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use specgen_kernels::{Format, KvType};

use crate::{
    chat::ChatTemplate,
    device::{Device, DeviceSpec},
    draft::{
        CompositeDrafter, Corpus, DraftVocab, Drafter, ForcedDrafter, ModelDrafter, NgramDrafter, NoDraft,
        TokenMemory,
    },
    draft_source::DraftSource,
    error::{Error, Result},
    grammar::Vocabulary,
    memory::{self, Usage},
    model::{LoadOptions, Model, PROMPT_CHUNK, check_context, load},
    models::{ModelFiles, NoProgress, Progress, Store, StoreOptions},
    open::OpenModel,
    plan::{Costs, Place, Plan, Planner, Role, curve, guessed},
    round::Rounds,
    sampling::{Sampler, SamplingParams},
    sequence::{Limits, Means, Memory, Request, Sequence},
    session::Session,
    spelling::spelled,
    text::TextOutput,
    tokenizer::Tokenizer,
};

/// Tokens of context unless the caller says otherwise, where the model was trained on at least as many.
pub const DEFAULT_CONTEXT_LEN: usize = 8192;
/// The model used where none is named.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// A loaded target with its drafter. Cheap to clone; sessions share it.
#[derive(Clone)]
pub struct Engine {
    target: Arc<dyn Model>,
    loaded: Arc<Loaded>,
    drafter: Arc<dyn Drafter>,
    num_sequences: usize,
    plan: Plan,
    planner: Arc<dyn Planner>,
    /// What passes cost, as far as it was measured.
    costs: Costs,
}

/// What belongs to the target's text.
struct Loaded {
    tokenizer: Option<Tokenizer>,
    chat_template: Result<Option<ChatTemplate>>,
    name: String,
    /// Ids that may be said: the tokenizer's, where the head is padded beyond them.
    vocab_size: usize,
    end_ids: Vec<u32>,
    /// Who drafts, and the model that was loaded for it.
    draft: DraftSource,
    draft_model: Option<Arc<ModelDrafter>>,
    /// The tokens as grammars see them, once one is asked for.
    vocabulary: OnceLock<Vocabulary>,
}

impl Engine {
    /// Starts the description of an engine over `target`: a model's name, a path to a file or folder, or a
    /// hub repository.
    pub fn builder(target: impl Into<String>) -> EngineBuilder {
        EngineBuilder {
            target: target.into(),
            draft: DraftSource::default(),
            draft_head: None,
            adapt: false,
            num_sequences: 1,
            plan: Plan::default(),
            device: DeviceSpec::default(),
            threads: 0,
            context_len: None,
            kv_type: None,
            store: None,
            overrides: Overrides::default(),
        }
    }

    /// An engine over any model and drafter, without text: prompts are token ids. `plan` may be a number of tokens; what
    /// [`Plan::Auto`] has to know of costs it learns by and by. `end_ids` end a text.
    pub fn from_parts(
        target: Arc<dyn Model>,
        drafter: Arc<dyn Drafter>,
        plan: impl Into<Plan>,
        end_ids: &[u32],
    ) -> Self {
        let loaded = Loaded {
            vocab_size: target.info().vocab_size,
            name: target.info().architecture.clone(),
            tokenizer: None,
            chat_template: Ok(None),
            end_ids: end_ids.to_vec(),
            draft: DraftSource::None,
            draft_model: None,
            vocabulary: OnceLock::new(),
        };
        // Their memory is the caller's concern.
        let num_sequences = usize::MAX;
        let plan = plan.into();
        let costs = guessed(&*target, &*drafter);
        let planner = plan.planner(&costs);
        Self { target, loaded: Arc::new(loaded), drafter, num_sequences, plan, planner, costs }
    }

    /// The same tokenizer and template over another target of the same vocabulary, such as one that watches or alters
    /// what passes through it.
    #[must_use]
    pub fn with_target(&self, target: Arc<dyn Model>) -> Self {
        Self { target, ..self.clone() }
    }

    /// The same loaded target with another drafter and plan (or number of tokens): weights are shared, sequences and what a
    /// plan has learned are not.
    #[must_use]
    pub fn with_drafter(&self, drafter: Arc<dyn Drafter>, plan: impl Into<Plan>) -> Self {
        let plan = plan.into();
        let is_known = match (drafter.model(), self.drafter.model()) {
            (Some(model), Some(known)) => Arc::ptr_eq(model, known),
            (None, None) => true,
            _ => false,
        };
        let costs = match is_known {
            true => Costs { has_guesses: drafter.has_guesses(), ..self.costs.clone() },
            false => guessed(&*self.target, &*drafter).with_target(&self.costs.target),
        };
        Self { planner: plan.planner(&costs), drafter, plan, costs, ..self.clone() }
    }

    /// The same loaded models with drafts from another source and by another plan.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a source whose model is not the one that was loaded to draft.
    pub fn with_source(&self, source: &DraftSource, plan: impl Into<Plan>) -> Result<Self> {
        if source.of_model() != self.loaded.draft.of_model() && source.is_model() {
            let loaded = &self.loaded.draft;
            return Err(Error::InvalidArgument(format!(
                "draft `{source}`: its model was not loaded, the engine's draft is `{loaded}`"
            )));
        }
        let model = self.loaded.draft_model.clone().filter(|_| source.is_model());
        Ok(self.with_drafter(drafter(source, model), plan))
    }

    /// Who drafts, as it was loaded: what [`DraftSource::Auto`] came to.
    pub fn draft_source(&self) -> &DraftSource {
        &self.loaded.draft
    }

    /// Gives the drafter a text to guess from, such as documents that answers will quote; it is kept with those that the
    /// engine wrote, and makes no answer another.
    ///
    /// # Errors
    /// A text where the engine has no tokenizer; [`Error::Unsupported`] for a draft that makes no use of one.
    pub fn remember(&self, text: &str) -> Result<()> {
        let tokens = self.need_tokenizer()?.encode(text, false)?;
        match self.drafter.remember(&tokens) {
            true => Ok(()),
            false => Err(Error::Unsupported(
                "a corpus is of use only where guesses draft, as `suffix`, `auto` or `suffix+MODEL` do"
                    .into(),
            )),
        }
    }

    /// A conversation with these sampling parameters.
    ///
    /// # Errors
    /// [`Error::Parameter`] naming the parameter that is out of range, or what is wrong with a grammar;
    /// [`Error::Unsupported`] for a phrase of text or a grammar that is not compiled where there is no tokenizer.
    pub fn session(&self, params: SamplingParams) -> Result<Session> {
        Session::new(self.clone(), params)
    }

    /// The target.
    pub fn target(&self) -> &Arc<dyn Model> {
        &self.target
    }

    /// Who drafts.
    pub fn drafter(&self) -> &Arc<dyn Drafter> {
        &self.drafter
    }

    /// Texts at once that there is memory for, as planned.
    pub fn num_sequences(&self) -> usize {
        self.num_sequences
    }

    /// How the lengths of drafts are chosen.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Tokens drafted per round at most.
    pub fn num_draft_tokens(&self) -> usize {
        self.planner.max_tokens()
    }

    /// The target's name, as given.
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// The tokenizer, where there is one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.loaded.tokenizer.as_ref()
    }

    /// The chat template, where the model has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.loaded.chat_template.as_ref().ok()?.as_ref()
    }

    /// The chat template, or the reason why messages cannot be used.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] where the model has none, or one that is broken.
    pub fn need_chat_template(&self) -> Result<&ChatTemplate> {
        let message = match &self.loaded.chat_template {
            Ok(Some(template)) => return Ok(template),
            Ok(None) => "no chat template: it is a base model, or its template was lost in conversion; \
                 give it raw text, or a template"
                .to_owned(),
            Err(broken) => format!("the chat template is unusable: {broken}"),
        };
        Err(Error::ChatTemplate { model: self.name().to_owned(), message })
    }

    /// Ids that may be said.
    pub fn vocab_size(&self) -> usize {
        self.loaded.vocab_size
    }

    /// Tokens a text may have, prompt included.
    pub fn context_len(&self) -> usize {
        self.target.info().context_len
    }

    /// Ids that end a text.
    pub fn end_ids(&self) -> &[u32] {
        &self.loaded.end_ids
    }

    /// The tokenizer, or the reason why text cannot be used.
    pub(crate) fn need_tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer().ok_or_else(|| {
            Error::Unsupported("this engine has no tokenizer; give token ids instead of text".into())
        })
    }

    /// The parameters, checked, with their phrases as token ids and their grammar compiled; as they are where the engine
    /// has no tokenizer.
    pub(crate) fn spelled<'a>(&self, params: &'a SamplingParams) -> Result<Cow<'a, SamplingParams>> {
        params.validate(self.vocab_size())?;
        let Some(tokenizer) = self.tokenizer() else { return Ok(Cow::Borrowed(params)) };
        let mut params = spelled(params, tokenizer)?;
        if let Some(grammar) = &params.grammar {
            let compiled = grammar.compile(self.vocabulary(tokenizer)?)?;
            params.to_mut().grammar = Some(compiled);
        }
        Ok(params)
    }

    fn vocabulary(&self, tokenizer: &Tokenizer) -> Result<&Vocabulary> {
        if self.loaded.vocabulary.get().is_none() {
            // Of two that are made at once one is kept.
            let _ = self.loaded.vocabulary.set(Vocabulary::of(tokenizer)?);
        }
        Ok(self.loaded.vocabulary.get().expect("it has just been set"))
    }

    /// Begins a sequence, over the caches that `memory` holds from an earlier text, if any; those of another
    /// engine are of no use to this one and are let go. [`Session`] does this for one conversation; do it
    /// yourself to run many sequences through the same rounds.
    ///
    /// # Errors
    /// An empty prompt or one longer than the context, parameters out of range, an empty stop string, a stop
    /// string or a phrase of text without a tokenizer. `memory` is taken only on success.
    pub fn start(&self, request: &Request<'_>, memory: &mut Option<Memory>) -> Result<Sequence> {
        let context_len = self.context_len();
        if request.prompt.is_empty() {
            return Err(Error::InvalidArgument(
                "the prompt is empty; give at least one token of text".into(),
            ));
        }
        if request.prompt.len() >= context_len {
            return Err(Error::ContextOverflow { len: request.prompt.len(), max: context_len });
        }
        if !request.stops.is_empty() {
            self.need_tokenizer()?;
        }
        let min_tokens = request.params.min_tokens;
        if min_tokens > request.max_tokens {
            let most = request.max_tokens;
            let problem = format!("is {min_tokens}, but must be at most the {most} tokens a text may have");
            return Err(Error::parameter("min_tokens", problem));
        }
        let params = self.spelled(request.params)?;
        let text = self.tokenizer().map(|tokenizer| TextOutput::new(tokenizer, request.stops)).transpose()?;
        let end_ids = if request.ignore_eos { Vec::new() } else { self.end_ids().to_vec() };
        let sampler = Sampler::new(&params, self.vocab_size())?.with_end_ids(&end_ids);
        let limits = Limits { max_tokens: request.max_tokens, context_len, end_ids };
        let (target, drafter) = (&self.target, &self.drafter);
        let memory = memory.take().filter(|memory| memory.is_of(target, drafter));
        let memory = memory.unwrap_or_else(|| Memory::new(target, drafter));
        let means = Means { memory, pace: self.planner.new_pace() };
        Ok(Sequence::new(request.prompt, means, sampler, limits, text))
    }

    /// Rounds over this engine's target and drafter.
    pub fn rounds(&self) -> Rounds {
        Rounds::new(self.target.clone(), self.drafter.clone(), PROMPT_CHUNK)
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// What replaces a model's own tokenizer or template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// A `tokenizer.json`.
    pub tokenizer: Option<PathBuf>,
    /// The name of a GGUF vocabulary's pre-tokenizer, where the file's own is missing or unknown.
    pub tokenizer_pre: Option<String>,
    /// A file with a chat template (Jinja).
    pub chat_template: Option<PathBuf>,
}

/// The description of an engine.
#[derive(Clone, Debug)]
pub struct EngineBuilder {
    target: String,
    draft: DraftSource,
    draft_head: Option<usize>,
    adapt: bool,
    num_sequences: usize,
    plan: Plan,
    device: DeviceSpec,
    threads: usize,
    context_len: Option<usize>,
    kv_type: Option<KvType>,
    store: Option<StoreOptions>,
    overrides: Overrides,
}

impl EngineBuilder {
    /// Who drafts; without this call what is best for the target ([`DraftSource::Auto`]).
    #[must_use]
    pub fn draft(mut self, draft: impl Into<DraftSource>) -> Self {
        self.draft = draft.into();
        self
    }

    /// Lets a model that drafts learn while it serves ([`TokenMemory`](crate::draft::TokenMemory)); without this call it drafts
    /// as it was trained.
    #[must_use]
    pub fn adapt(mut self, adapt: bool) -> Self {
        self.adapt = adapt;
        self
    }

    /// How many tokens of text a model that drafts computes logits of, the most frequent ones, and so can say; without this
    /// call all that the target has too. A smaller output head makes its passes shorter and its drafts worse, by as much as
    /// the text is of rare words ([`DraftVocab::head_ids`]); texts keep their distribution.
    #[must_use]
    pub fn draft_head(mut self, num_tokens: Option<usize>) -> Self {
        self.draft_head = num_tokens;
        self
    }

    /// How the lengths of drafts are chosen; without this call by time ([`Plan::Auto`]), for which passes of the target and
    /// of a draft model are timed, once for a model and a machine, in about a second for a model of 1 GB. The times are kept
    /// in the store's folder.
    #[must_use]
    pub fn plan(mut self, plan: impl Into<Plan>) -> Self {
        self.plan = plan.into();
        self
    }

    /// Texts at once to plan memory for, each of the whole context: for [`Session::generate_many`] and rounds of many
    /// sequences; 1 without this call, and at least.
    #[must_use]
    pub fn num_sequences(mut self, num_sequences: usize) -> Self {
        self.num_sequences = num_sequences.max(1);
        self
    }

    /// Tokens drafted in every round; 0 is plain decoding, for which a draft is checked but not loaded.
    #[must_use]
    pub fn num_draft_tokens(self, k: usize) -> Self {
        self.plan(k)
    }

    /// Where the models run.
    #[must_use]
    pub fn device(mut self, device: DeviceSpec) -> Self {
        self.device = device;
        self
    }

    /// CPU threads; 0, the default: one per physical core available.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Tokens a text may have; by default 8192, or what the model was trained on where that is less.
    #[must_use]
    pub fn context_len(mut self, context_len: usize) -> Self {
        self.context_len = Some(context_len);
        self
    }

    /// How keys and values are kept, the draft's too; by default in f16 on the CPU, in f32 elsewhere.
    #[must_use]
    pub fn kv_type(mut self, kv_type: KvType) -> Self {
        self.kv_type = Some(kv_type);
        self
    }

    /// Where models by name live and come from; by default as the environment says.
    #[must_use]
    pub fn store(mut self, store: StoreOptions) -> Self {
        self.store = Some(store);
        self
    }

    /// What replaces the target's own tokenizer or chat template.
    #[must_use]
    pub fn overrides(mut self, overrides: Overrides) -> Self {
        self.overrides = overrides;
        self
    }

    /// Loads everything, fetching models by name on first use.
    ///
    /// # Errors
    /// Anything that keeps a model from being found, fetched, read or held in memory; a draft whose
    /// vocabulary has too little in common with the target's; what the device can't do.
    pub fn build(self) -> Result<Engine> {
        self.build_with(&NoProgress)
    }

    /// Opens the draft. Where its file does not say how it splits text and it has the target's vocabulary, what names the
    /// pre-tokenizer of one names that of both.
    fn open_draft(&self, files: &ModelFiles) -> Result<OpenModel> {
        match OpenModel::open(files, &Overrides::default()) {
            Err(Error::Tokenizer { .. }) if self.overrides.tokenizer_pre.is_some() => {
                let tokenizer_pre = self.overrides.tokenizer_pre.clone();
                OpenModel::open(files, &Overrides { tokenizer_pre, ..Overrides::default() })
            }
            opened => opened,
        }
    }

    /// The model that drafts by `source`, opened and compared with the target; `None` where no model does.
    fn draft_model(
        &self,
        source: &DraftSource,
        target: &OpenModel,
        target_files: &ModelFiles,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Option<DraftModel>> {
        match (source.resolve(store, progress)?, source.copy_format()?) {
            (Some(files), _) => {
                let draft = self.open_draft(&files)?;
                let vocab = DraftVocab::between(&target.tokenizer, &draft.tokenizer)?;
                if let Some(coverage) = vocab.coverage() {
                    progress.message(&format!("{} has another vocabulary: {coverage}", draft.name));
                }
                let (weights, open) = (files.weights, Some(draft));
                Ok(Some(DraftModel { weights, open, vocab, copy_as: None, head_ids: None }))
            }
            (None, Some(format)) => {
                target.copy_bytes(format)?;
                let vocab = DraftVocab::Shared(target.tokenizer.vocab_size());
                // Told from the target by its name.
                let weights = [&target_files.weights[..], &[source.to_string().into()]].concat();
                Ok(Some(DraftModel { weights, open: None, vocab, copy_as: Some(format), head_ids: None }))
            }
            (None, None) => Ok(None),
        }
    }

    /// As [`EngineBuilder::build`], telling `progress` of long work.
    ///
    /// # Errors
    /// As [`EngineBuilder::build`].
    pub fn build_with(self, progress: &dyn Progress) -> Result<Engine> {
        let store = Store::new(match &self.store {
            Some(options) => options.clone(),
            None => StoreOptions::from_env()?,
        });
        self.plan.check()?;
        let target_files = store.resolve(&self.target, progress)?;
        let target = OpenModel::open(&target_files, &self.overrides)?;
        let find = |source: &DraftSource| self.draft_model(source, &target, &target_files, &store, progress);
        let (source, draft) = match &self.draft {
            DraftSource::Auto => {
                let best = DraftSource::recommended(&target_files);
                match find(&best) {
                    Ok(draft) => (best, draft),
                    Err(error) => {
                        progress
                            .message(&format!("{best} is recommended, but only guesses will draft: {error}"));
                        (DraftSource::Suffix, None)
                    }
                }
            }
            source => (source.clone(), find(source)?),
        };
        // Where nothing is to be drafted, the draft was worth a check and is worth no memory.
        let draft = draft.filter(|_| self.plan.max_tokens() > 0);
        let draft = draft.map(|draft| draft.with_head(&target, self.draft_head));

        let context_of = |model: &OpenModel| {
            let trained = model.config.context_len;
            self.context_len.unwrap_or(DEFAULT_CONTEXT_LEN.min(trained))
        };
        let context_len = context_of(&target);
        check_context(context_len, &target.config)?;
        // A draft with a shorter context is fine: where it is full, drafting stops.
        let draft_context = |draft: &OpenModel| context_len.min(draft.config.context_len);
        let num_sequences = self.num_sequences;
        let rows = memory::logits_rows(self.plan.max_tokens(), num_sequences);
        let kv_type = self.device.kv_type(self.kv_type)?;
        let usage = Usage { context_len, num_sequences, rows, kv_type, num_logits: None };
        let mut plan = vec![target.memory(usage)];
        if let Some(DraftModel { open, copy_as, head_ids, .. }) = &draft {
            let open = open.as_ref().unwrap_or(&target);
            let num_logits = head_ids.as_ref().map(|ids| ids.len());
            let usage = Usage { context_len: draft_context(open), rows: num_sequences, num_logits, ..usage };
            plan.push(match copy_as {
                Some(format) => open.memory_of_copy(&source.to_string(), *format, usage)?,
                None => open.memory(usage),
            });
        }
        // A GPU's memory is its own, and its driver refuses what does not fit.
        if matches!(self.device, DeviceSpec::Cpu | DeviceSpec::Reference) {
            memory::check(&plan)?;
        }

        let device = Device::open(self.device, self.threads)?;
        let load_model = |model: &OpenModel, context_len, copy_as, head_ids| {
            let options = LoadOptions {
                device: device.clone(),
                context_len: Some(context_len),
                kv_type: Some(kv_type),
                copy_as,
                head_ids,
            };
            load(&model.weights, model.config_for(context_len)?, &options)
        };
        let model = load_model(&target, context_len, None, None)?;
        let draft_model = match &draft {
            Some(DraftModel { open, vocab, copy_as, head_ids, .. }) => {
                let open = open.as_ref().unwrap_or(&target);
                let vocab = match vocab {
                    DraftVocab::Shared(shared) => DraftVocab::Shared((*shared).min(model.info().vocab_size)),
                    other => other.clone(),
                };
                let model = load_model(open, draft_context(open), *copy_as, head_ids.clone())?;
                let drafter = ModelDrafter::with_vocab(model, vocab);
                Some(Arc::new(match self.adapt {
                    true => drafter.with_memory(Arc::new(TokenMemory::default())),
                    false => drafter,
                }))
            }
            None => None,
        };
        let drafter = drafter(&source, draft_model.clone());
        let mut costs = guessed(&*model, &*drafter);
        // Who never drafts, or always as much, need not know.
        if self.plan.goes_by_time() && source != DraftSource::None {
            let dir = store.options().root.join("costs");
            let time = |model: &dyn Model, role, weights: &[PathBuf]| {
                curve(model, role, &Place { weights, device: &device, kv_type, dir: &dir })
            };
            costs = costs.with_target(&time(&*model, Role::Target, &target_files.weights)?);
            if let (Some(model), Some(DraftModel { weights, .. })) = (drafter.model(), &draft) {
                costs = costs.with_draft(&time(&**model, Role::Draft, weights)?);
            }
        }
        let planner = self.plan.planner(&costs);
        let loaded = Loaded {
            vocab_size: target.tokenizer.vocab_size().min(model.info().vocab_size),
            end_ids: target.tokenizer.end_of_generation().to_vec(),
            draft: source,
            draft_model,
            name: target.name,
            tokenizer: Some(target.tokenizer),
            chat_template: target.chat_template,
            vocabulary: OnceLock::new(),
        };
        Ok(Engine {
            target: model,
            loaded: Arc::new(loaded),
            drafter,
            num_sequences,
            plan: self.plan,
            planner,
            costs,
        })
    }
}

/// A model that is to draft.
struct DraftModel {
    /// What tells it from other models: its files.
    weights: Vec<PathBuf>,
    /// `None` for a copy of the target.
    open: Option<OpenModel>,
    vocab: DraftVocab,
    copy_as: Option<Format>,
    /// The ids it computes logits of.
    head_ids: Option<Arc<[u32]>>,
}

impl DraftModel {
    /// The same with logits of what it may draft, or the most frequent of it.
    fn with_head(mut self, target: &OpenModel, num_frequent: Option<usize>) -> Self {
        let open = self.open.as_ref().unwrap_or(target);
        let (tokenizer, vocab_size) = (&open.tokenizer, open.config.vocab_size);
        self.head_ids = self.vocab.head_ids(tokenizer, vocab_size, num_frequent);
        // Its passes take another time.
        self.weights.extend(self.head_ids.iter().map(|ids| format!("{} logits", ids.len()).into()));
        self
    }
}

/// Who drafts as `source` says, with the `model` that was loaded for it.
fn drafter(source: &DraftSource, model: Option<Arc<ModelDrafter>>) -> Arc<dyn Drafter> {
    let composite = CompositeDrafter::new(Arc::new(Corpus::default()));
    match (source, model) {
        // A model's draft is masked by the grammar too, and spells what is forced as its target is apt to.
        (DraftSource::Model(_) | DraftSource::Copy(_), Some(model)) => model,
        (DraftSource::Both(_), Some(model)) => {
            Arc::new(ForcedDrafter::new(Arc::new(composite.with_model(model))))
        }
        (DraftSource::Suffix, _) => Arc::new(ForcedDrafter::new(Arc::new(composite))),
        (DraftSource::Ngram, _) => Arc::new(ForcedDrafter::new(Arc::new(NgramDrafter::default()))),
        _ => Arc::new(NoDraft),
    }
}
