"""Every fact by name, and the unions `Input`, `Derived` and `Fact`: all that can happen to a run, on one page.

The kind belongs to the type. Code says `f.ToolStarted`, with `from refold.events import facts as f`.
"""

from typing import TypeAlias

from refold.events.derived import (
    ApprovalExpired as ApprovalExpired,
    ApprovalRequested as ApprovalRequested,
    ClarificationRequested as ClarificationRequested,
    DuplicateActionBlocked as DuplicateActionBlocked,
    FinalRejected as FinalRejected,
    ModelErrorObserved as ModelErrorObserved,
    ModelPaused as ModelPaused,
    ModelRequested as ModelRequested,
    NoteStored as NoteStored,
    RetryScheduled as RetryScheduled,
    RunCancelled as RunCancelled,
    RunCompleted as RunCompleted,
    RunFailed as RunFailed,
    RunStopped as RunStopped,
    SummaryRequested as SummaryRequested,
    ToolCallsAccepted as ToolCallsAccepted,
    ToolClosed as ToolClosed,
    ToolInDoubt as ToolInDoubt,
    ToolRejected as ToolRejected,
    ToolResultsInjected as ToolResultsInjected,
    ToolStarted as ToolStarted,
)
from refold.events.inputs import (
    AnswerChecked as AnswerChecked,
    ApprovalDenied as ApprovalDenied,
    ApprovalGranted as ApprovalGranted,
    CallsChecked as CallsChecked,
    CallSuperseded as CallSuperseded,
    CancelRequested as CancelRequested,
    ClarificationReceived as ClarificationReceived,
    CompactionRequested as CompactionRequested,
    ContextChosen as ContextChosen,
    ContextCompacted as ContextCompacted,
    DoubtResolved as DoubtResolved,
    DriverAttached as DriverAttached,
    DriverDetached as DriverDetached,
    Erased as Erased,
    FinalProposed as FinalProposed,
    LateOutcome as LateOutcome,
    ModelFailed as ModelFailed,
    ModelInterrupted as ModelInterrupted,
    ModelOutput as ModelOutput,
    RunContinued as RunContinued,
    RunForked as RunForked,
    RunStarted as RunStarted,
    Sealed as Sealed,
    StreamCheckpointed as StreamCheckpointed,
    ToolCallsRequested as ToolCallsRequested,
    ToolFailed as ToolFailed,
    ToolSucceeded as ToolSucceeded,
    UsageUpdated as UsageUpdated,
    UserSaid as UserSaid,
)
from refold.events.parts import (
    Block as Block,
    Check as Check,
    Edit as Edit,
    ErrorInfo as ErrorInfo,
    ModelSetup as ModelSetup,
    Note as Note,
    Price as Price,
    ProposedCall as ProposedCall,
    Setup as Setup,
    ToolSetup as ToolSetup,
    Usage as Usage,
)

Input: TypeAlias = (
    RunStarted
    | RunContinued
    | RunForked
    | DriverAttached
    | DriverDetached
    | ContextChosen
    | ContextCompacted
    | UsageUpdated
    | StreamCheckpointed
    | ModelFailed
    | ModelInterrupted
    | FinalProposed
    | AnswerChecked
    | ToolCallsRequested
    | CallsChecked
    | ToolSucceeded
    | ToolFailed
    | DoubtResolved
    | LateOutcome
    | ApprovalGranted
    | ApprovalDenied
    | ClarificationReceived
    | CallSuperseded
    | UserSaid
    | CompactionRequested
    | CancelRequested
    | Sealed
    | Erased
)
Derived: TypeAlias = (
    ModelRequested
    | SummaryRequested
    | RetryScheduled
    | ModelErrorObserved
    | ModelPaused
    | FinalRejected
    | ToolRejected
    | DuplicateActionBlocked
    | ToolCallsAccepted
    | ApprovalRequested
    | ClarificationRequested
    | ToolStarted
    | NoteStored
    | ApprovalExpired
    | ToolInDoubt
    | ToolClosed
    | ToolResultsInjected
    | RunCompleted
    | RunStopped
    | RunFailed
    | RunCancelled
)
Fact: TypeAlias = Input | Derived
Ending: TypeAlias = RunCompleted | RunStopped | RunFailed | RunCancelled
