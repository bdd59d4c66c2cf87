import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    """No row becomes another: two that swapped their ids had each other's children."""

    dependencies = [
        ('turns', '0008_steps_of_their_turns'),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name='conversation',
            name='identity_is_fixed',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='message',
            name='identity_is_fixed',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='note',
            name='is_final',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='providerstep',
            name='identity_is_fixed',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='receipt',
            name='identity_is_fixed',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='toolstep',
            name='identity_is_fixed',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='turn',
            name='admission_is_immutable',
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='conversation',
            trigger=pgtrigger.compiler.Trigger(name='identity_is_fixed', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.owner_id IS DISTINCT FROM NEW.owner_id)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_conversation_identity_is_fixed', MESSAGE = 'turns_conversation_identity_is_fixed';", hash='1d18ac7b171222f00bb620726a550a80170ebec5', operation='UPDATE OF "id", "owner_id"', pgid='pgtrigger_identity_is_fixed_b9a70', table='turns_conversation', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='message',
            trigger=pgtrigger.compiler.Trigger(name='identity_is_fixed', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.conversation_id IS DISTINCT FROM NEW.conversation_id OR OLD.role IS DISTINCT FROM NEW.role OR OLD.created_at IS DISTINCT FROM NEW.created_at)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_message_identity_is_fixed', MESSAGE = 'turns_message_identity_is_fixed';", hash='28567d0a08c091761db61723345dc04ce61c1b5c', operation='UPDATE OF "id", "conversation_id", "role", "created_at"', pgid='pgtrigger_identity_is_fixed_3b600', table='turns_message', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='note',
            trigger=pgtrigger.compiler.Trigger(name='is_final', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.owner_id IS DISTINCT FROM NEW.owner_id OR OLD.text IS DISTINCT FROM NEW.text OR OLD.invocation_key IS DISTINCT FROM NEW.invocation_key OR OLD.created_at IS DISTINCT FROM NEW.created_at)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_note_is_final', MESSAGE = 'turns_note_is_final';", hash='4225292d5ece38857db20a61ff051749a2b2cd76', operation='UPDATE OF "id", "owner_id", "text", "invocation_key", "created_at"', pgid='pgtrigger_is_final_70d67', table='turns_note', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='providerstep',
            trigger=pgtrigger.compiler.Trigger(name='identity_is_fixed', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.turn_id IS DISTINCT FROM NEW.turn_id OR OLD.generation IS DISTINCT FROM NEW.generation OR OLD.sequence IS DISTINCT FROM NEW.sequence OR OLD.model IS DISTINCT FROM NEW.model OR OLD.request_digest IS DISTINCT FROM NEW.request_digest OR OLD.request_bytes IS DISTINCT FROM NEW.request_bytes OR OLD.offers_tools IS DISTINCT FROM NEW.offers_tools OR OLD.started_at IS DISTINCT FROM NEW.started_at)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_providerstep_identity_is_fixed', MESSAGE = 'turns_providerstep_identity_is_fixed';", hash='7fbcee1a348026c2245dab30120c0ad00f35e319', operation='UPDATE OF "id", "turn_id", "generation", "sequence", "model", "request_digest", "request_bytes", "offers_tools", "started_at"', pgid='pgtrigger_identity_is_fixed_f75b4', table='turns_providerstep', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='receipt',
            trigger=pgtrigger.compiler.Trigger(name='identity_is_fixed', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.turn_id IS DISTINCT FROM NEW.turn_id OR OLD.generation IS DISTINCT FROM NEW.generation OR OLD.provider_api IS DISTINCT FROM NEW.provider_api OR OLD.model IS DISTINCT FROM NEW.model OR OLD.instructions_digest IS DISTINCT FROM NEW.instructions_digest OR OLD.input_digest IS DISTINCT FROM NEW.input_digest OR OLD.tools_digest IS DISTINCT FROM NEW.tools_digest OR OLD.message_count IS DISTINCT FROM NEW.message_count OR OLD.byte_count IS DISTINCT FROM NEW.byte_count OR OLD.created_at IS DISTINCT FROM NEW.created_at)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_receipt_identity_is_fixed', MESSAGE = 'turns_receipt_identity_is_fixed';", hash='4d5858a3ffd52f52496c59db7ca7cc55ac64331e', operation='UPDATE OF "id", "turn_id", "generation", "provider_api", "model", "instructions_digest", "input_digest", "tools_digest", "message_count", "byte_count", "created_at"', pgid='pgtrigger_identity_is_fixed_eacb9', table='turns_receipt', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='toolstep',
            trigger=pgtrigger.compiler.Trigger(name='identity_is_fixed', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.turn_id IS DISTINCT FROM NEW.turn_id OR OLD.generation IS DISTINCT FROM NEW.generation OR OLD.provider_step_id IS DISTINCT FROM NEW.provider_step_id OR OLD.sequence IS DISTINCT FROM NEW.sequence OR OLD.call_id IS DISTINCT FROM NEW.call_id OR OLD.item_id IS DISTINCT FROM NEW.item_id OR OLD.name IS DISTINCT FROM NEW.name OR OLD.effect IS DISTINCT FROM NEW.effect OR OLD.arguments IS DISTINCT FROM NEW.arguments OR OLD.arguments_digest IS DISTINCT FROM NEW.arguments_digest OR OLD.invocation_key IS DISTINCT FROM NEW.invocation_key OR OLD.requested_at IS DISTINCT FROM NEW.requested_at)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_toolstep_identity_is_fixed', MESSAGE = 'turns_toolstep_identity_is_fixed';", hash='fde25aec21e510b4397ab5c50568c25b6429a914', operation='UPDATE OF "id", "turn_id", "generation", "provider_step_id", "sequence", "call_id", "item_id", "name", "effect", "arguments", "arguments_digest", "invocation_key", "requested_at"', pgid='pgtrigger_identity_is_fixed_c13a2', table='turns_toolstep', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='turn',
            trigger=pgtrigger.compiler.Trigger(name='admission_is_immutable', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.conversation_id IS DISTINCT FROM NEW.conversation_id OR OLD.user_message_id IS DISTINCT FROM NEW.user_message_id OR OLD.assistant_message_id IS DISTINCT FROM NEW.assistant_message_id OR OLD.client_key IS DISTINCT FROM NEW.client_key OR OLD.request_digest IS DISTINCT FROM NEW.request_digest OR OLD.model IS DISTINCT FROM NEW.model OR OLD.limits IS DISTINCT FROM NEW.limits OR OLD.created_at IS DISTINCT FROM NEW.created_at OR OLD.queue_deadline_at IS DISTINCT FROM NEW.queue_deadline_at)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_turn_admission_is_immutable', MESSAGE = 'turns_turn_admission_is_immutable';", hash='96ee4ce9474e5d44ce6d2adf58fe956b89d0a24c', operation='UPDATE OF "id", "conversation_id", "user_message_id", "assistant_message_id", "client_key", "request_digest", "model", "limits", "created_at", "queue_deadline_at"', pgid='pgtrigger_admission_is_immutable_92617', table='turns_turn', when='AFTER')),
        ),
    ]
